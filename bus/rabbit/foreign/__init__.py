"""Exchanges of other systems, such as Ironic's and Nova's, at their RabbitMQ: the only way to reach them."""
