"""The navigation tasks of Safety-Gymnasium: Goal, Button, Push and Circle, three levels each, five robots."""
