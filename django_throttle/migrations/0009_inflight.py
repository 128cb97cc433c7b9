from typing import Any

from django.db import migrations, models


def keep_the_meaning(apps: Any, schema_editor: Any) -> None:
    """Until now a concurrency rule counted sockets and requests in flight, and under methods requests alone."""
    rows = apps.get_model("django_throttle", "ThrottleRule").objects.using(schema_editor.connection.alias)
    held = rows.filter(algorithm="concurrency")
    held.filter(methods="").update(events=("connection", "inflight"))
    held.exclude(methods="").update(events=("inflight",), at_limit="reject")


def restore(apps: Any, schema_editor: Any) -> None:
    rows = apps.get_model("django_throttle", "ThrottleRule").objects.using(schema_editor.connection.alias)
    rows.filter(algorithm="concurrency").update(events=("connection",))


class Migration(migrations.Migration):

    dependencies = [
        ('django_throttle', '0008_connections'),
    ]

    operations = [
        migrations.RemoveConstraint(
            model_name='throttlerule',
            name='throttle_events_known',
        ),
        migrations.RemoveConstraint(
            model_name='throttlerule',
            name='throttle_http_of_requests',
        ),
        migrations.RemoveConstraint(
            model_name='throttlerule',
            name='throttle_at_limit_of_concurrency',
        ),
        migrations.RunPython(keep_the_meaning, restore, elidable=True),
        migrations.AddConstraint(
            model_name='throttlerule',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('algorithm', 'concurrency'), ('events__regex', '^(inflight|connection)(,(inflight|connection))*$')), models.Q(models.Q(('algorithm', 'concurrency'), _negated=True), ('events__regex', '^(request|connect|message|send|publish|task)(,(request|connect|message|send|publish|task))*$')), _connector='OR'), name='throttle_events_known'),
        ),
        migrations.AddConstraint(
            model_name='throttlerule',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('count_on', ''), ('methods', '')), ('events', 'request'), models.Q(('count_on', ''), ('events', 'inflight')), _connector='OR'), name='throttle_http_of_requests'),
        ),
        migrations.AddConstraint(
            model_name='throttlerule',
            constraint=models.CheckConstraint(condition=models.Q(('at_limit', 'reject'), models.Q(('algorithm', 'concurrency'), ('events__contains', 'connection')), _connector='OR'), name='throttle_at_limit_of_concurrency'),
        ),
    ]
