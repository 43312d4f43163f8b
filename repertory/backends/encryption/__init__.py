"""Encryption of sessions at rest: keys, the cipher of rows, and a store that seals what goes into another store.

What belongs here: whatever needs a key or a cipher. Stores of sessions stay as they are, and see ciphertext. Start with
`store.py`; `keys.py` says where keys are kept.
"""
