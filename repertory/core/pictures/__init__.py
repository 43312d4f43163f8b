"""Pictures of stored sessions, of runs and of actors, as SVG and as text.

Every function here is pure: the same values give the same picture, byte for byte. Nothing needs a library or a browser.
"""
