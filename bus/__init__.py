"""The contract all workers share: messages, topics, worker tables, delivery, buses, database sessions."""
