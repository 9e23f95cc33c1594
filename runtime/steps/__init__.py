"""Steps that rows of several conversations, or guesses of one, share."""
