"""The RPC of OpenStack services (oslo.messaging) over RabbitMQ: server, client, and queues of a topic."""
