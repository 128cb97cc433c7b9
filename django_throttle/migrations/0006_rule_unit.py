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
            field=models.CharField(default='calls', max_length=20),
        ),
        migrations.AddConstraint(
            model_name='throttlerule',
            constraint=models.CheckConstraint(condition=models.Q(('key__in', ['user', 'ip', 'user_or_ip', 'api_key', 'session', 'tenant', 'connection', 'everyone']), ('key__regex', '^(user|ip|user_or_ip|api_key|session|tenant)([+](user|ip|user_or_ip|api_key|session|tenant))+$'), ('key__contains', '.'), _connector='OR'), name='throttle_key_known'),
        ),
        migrations.AddConstraint(
            model_name='throttlerule',
            constraint=models.CheckConstraint(condition=models.Q(('unit', 'calls'), ('events__regex', '^(request|message|send)(,(request|message|send))*$'), _connector='OR'), name='throttle_bytes_of_frames'),
        ),
        migrations.AddConstraint(
            model_name='throttlerule',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('key', 'connection'), _negated=True), ('events__regex', '^(message|send)(,(message|send))*$'), _connector='OR'), name='throttle_connection_of_frames'),
        ),
        migrations.AddConstraint(
            model_name='throttlerule',
            constraint=models.CheckConstraint(condition=models.Q(('unit__in', ['calls', 'bytes'])), name='throttle_unit_known'),
        ),
    ]
