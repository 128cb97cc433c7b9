from django.db import migrations, models

KEYS = ["user", "ip", "user_or_ip", "api_key", "session", "tenant", "everyone"]
JOINED = "^({0})([+]({0}))+$".format("|".join(KEYS[:-1]))


class Migration(migrations.Migration):

    dependencies = [
        ("django_throttle", "0003_override"),
    ]

    operations = [
        migrations.RemoveConstraint(
            model_name="throttlerule",
            name="throttle_key_known",
        ),
        migrations.AddConstraint(
            model_name="throttlerule",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("key__in", KEYS), ("key__regex", JOINED), ("key__contains", "."), _connector="OR"
                ),
                name="throttle_key_known",
            ),
        ),
    ]
