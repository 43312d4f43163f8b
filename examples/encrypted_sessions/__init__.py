"""An advice line whose conversations are encrypted at rest."""
