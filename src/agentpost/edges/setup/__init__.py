"""Other programs told about the post: their own configuration files, changed with care and put back to the byte.

- `clients`: what each program needs, as edits of its files.
- `edits`: what an edit makes of the bytes of a file, and of bytes that it was made in.
- `ledger`: what was changed, and what was there before.
"""
