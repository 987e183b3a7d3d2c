"""`forebay doctor`: is this Redis fit to keep requests, and is what it keeps in order?

`facts` and `scan` look, and change nothing; each file with a check judges what they saw and says
for each finding what it is, why it matters and what to do. `tables` lists the checks.
"""
