"""The only door to the engine: the courses of a task, trained once or kept running."""
