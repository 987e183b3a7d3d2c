"""Embedded server (see finder, process, folder, server)."""
