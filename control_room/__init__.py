"""The control room: web pages for operators about what runs, what waits, why, and what-if."""
