"""What a new user meets: the built wheel, projects that django-admin makes, and only what the docs show."""
