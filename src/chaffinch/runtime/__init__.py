"""What the shells stand on: the clock, sockets, the event loop. The only place besides them where time and the network are real."""
