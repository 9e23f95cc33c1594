"""The chat-completions protocol over live conversations: what an ordinary client speaks, with a memory behind it."""
