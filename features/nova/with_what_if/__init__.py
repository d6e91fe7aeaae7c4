"""Shadow mode: berth decides the requests of a running Nova too, by what-if questions."""
