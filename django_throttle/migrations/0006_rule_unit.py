from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('django_throttle', '0005_damper'),
    ]

    operations = [
        migrations.RemoveConstraint(
            model_name='throttlerule',
            name='throttle_key_known',
        ),
        migrations.AddField(
            model_name='throttlerule',
            name='unit',
            field=models.CharField(choices=[('calls', 'Calls'), ('bytes', 'Bytes that calls carry')], default='calls', help_text='What the rate counts: calls, or the bytes of requests and WebSocket messages.', max_length=20),
        ),
        migrations.AddConstraint(
            model_name='throttlerule',
            constraint=models.CheckConstraint(condition=models.Q(('key__in', ['user', 'ip', 'user_or_ip', 'api_key', 'session', 'tenant', 'connection', 'everyone']), ('key__regex', '^(user|ip|user_or_ip|api_key|session|tenant)([+](user|ip|user_or_ip|api_key|session|tenant))+$'), ('key__contains', '.'), _connector='OR'), name='throttle_key_known', violation_error_message='Choose who is counted.'),
        ),
        migrations.AddConstraint(
            model_name='throttlerule',
            constraint=models.CheckConstraint(condition=models.Q(('unit', 'calls'), ('events__regex', '^(request|message|send)(,(request|message|send))*$'), _connector='OR'), name='throttle_bytes_of_frames', violation_error_message='Only requests and messages have bytes that can be counted.'),
        ),
        migrations.AddConstraint(
            model_name='throttlerule',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('key', 'connection'), _negated=True), ('events__regex', '^(message|send)(,(message|send))*$'), _connector='OR'), name='throttle_connection_of_frames', violation_error_message='One WebSocket has a budget of its own for its messages, and for nothing else.'),
        ),
        migrations.AddConstraint(
            model_name='throttlerule',
            constraint=models.CheckConstraint(condition=models.Q(('unit__in', ['calls', 'bytes'])), name='throttle_unit_known', violation_error_message='unit is not one that this version knows.'),
        ),
    ]
