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
            field=models.CharField(default='reject', max_length=20),
        ),
        migrations.AddConstraint(
            model_name='throttlerule',
            constraint=models.CheckConstraint(condition=models.Q(('at_limit', 'reject'), ('algorithm', 'concurrency'), _connector='OR'), name='throttle_at_limit_of_concurrency'),
        ),
        migrations.AddConstraint(
            model_name='throttlerule',
            constraint=models.CheckConstraint(condition=models.Q(('at_limit__in', ['reject', 'evict_oldest', 'evict_idle'])), name='throttle_at_limit_known'),
        ),
    ]
