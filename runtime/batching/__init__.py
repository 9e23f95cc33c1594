"""Many conversations over one pool: admission, batched steps, preemption, speculation."""
