"""What a session tells its reader while it runs: alerts, a live page, and how it displays itself."""
