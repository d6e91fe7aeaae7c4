"""Running berth's surroundings: private RabbitMQ and PostgreSQL servers for tests, demo and bench."""
