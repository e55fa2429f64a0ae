"""Independent computations that the tests compare Gridmill with. They are written from the documentation."""
