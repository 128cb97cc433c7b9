from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('django_throttle', '0006_rule_unit'),
    ]

    operations = [
        migrations.AddField(
            model_name='throttlerule',
            name='batched',
            field=models.BooleanField(default=False),
        ),
        migrations.AddConstraint(
            model_name='throttlerule',
            constraint=models.CheckConstraint(condition=models.Q(('batched', False), models.Q(('algorithm', 'fixed_window'), ('count_denied', False), ('count_on', '')), _connector='OR'), name='throttle_batched_of_fixed_window'),
        ),
    ]
