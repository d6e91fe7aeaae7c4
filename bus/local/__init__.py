"""The bus in one process: a broker, its journal, and a socket for other processes of this machine."""
