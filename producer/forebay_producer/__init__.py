"""The HTTP API replica: takes requests in, holds nothing, and brings the answers back."""
