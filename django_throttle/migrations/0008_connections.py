from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('django_throttle', '0007_batched'),
    ]

    operations = [
        migrations.CreateModel(
            name='ThrottleConnection',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
            ],
            options={
                'verbose_name': 'connection',
                'permissions': [('close_throttleconnection', 'Can close connection')],
                'managed': False,
                'default_permissions': ('view',),
                'base_manager_name': 'objects',
            },
        ),
        migrations.AddField(
            model_name='throttlerule',
            name='at_limit',
            field=models.CharField(choices=[('reject', 'Refuse the newcomer'), ('evict_oldest', 'Close the oldest'), ('evict_idle', 'Close the one silent for longest')], default='reject', help_text='For concurrency: who goes when one more WebSocket is opened than may be. The one that is closed is told why. Requests in flight are never cut off.', max_length=20, verbose_name='one too many'),
        ),
        migrations.AddConstraint(
            model_name='throttlerule',
            constraint=models.CheckConstraint(condition=models.Q(('at_limit', 'reject'), ('algorithm', 'concurrency'), _connector='OR'), name='throttle_at_limit_of_concurrency', violation_error_message='To close one WebSocket for another belongs to concurrency.'),
        ),
        migrations.AddConstraint(
            model_name='throttlerule',
            constraint=models.CheckConstraint(condition=models.Q(('at_limit__in', ['reject', 'evict_oldest', 'evict_idle'])), name='throttle_at_limit_known', violation_error_message='at_limit is not one that this version knows.'),
        ),
    ]
