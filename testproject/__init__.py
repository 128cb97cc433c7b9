"""A small real site: a DRF API, a chat, one page that shows the limits at work, and the scripts that run it."""
