"""Documents recorded once, found again, and placed into a conversation: exactly, or approximately and labelled so."""
