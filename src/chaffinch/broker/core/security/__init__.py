"""Who logs in, by which mechanism, with which credentials, and what is let through before."""
