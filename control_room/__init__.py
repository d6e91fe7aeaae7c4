"""The control room: web pages for operators about what runs, what waits, why, and what-if. `worker` has its
table of messages, `pages` its pages.
"""
