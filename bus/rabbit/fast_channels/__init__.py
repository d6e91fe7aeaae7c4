"""AMQP channels that publish and consume with less processor time than aio-pika's: see README.md."""
