from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('django_throttle', '0006_rule_unit'),
    ]

    operations = [
        migrations.AddField(
            model_name='throttlerule',
            name='batched',
            field=models.BooleanField(default=False, help_text='For a fixed window, such as a quota beside a damper: a process charges what has passed every few seconds instead of asking for each call. A little more than the limit may pass.', verbose_name='charge in batches'),
        ),
        migrations.AddConstraint(
            model_name='throttlerule',
            constraint=models.CheckConstraint(condition=models.Q(('batched', False), models.Q(('algorithm', 'fixed_window'), ('count_denied', False), ('count_on', '')), _connector='OR'), name='throttle_batched_of_fixed_window', violation_error_message='Only a fixed window can be charged in batches, and only for what has passed.'),
        ),
    ]
