from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('django_throttle', '0004_rule_keys'),
    ]

    operations = [
        migrations.RemoveConstraint(
            model_name='throttlerule',
            name='throttle_algorithm_known',
        ),
        migrations.AddField(
            model_name='throttlerule',
            name='estimator',
            field=models.CharField(default='fast', max_length=20),
        ),
        migrations.AlterField(
            model_name='throttlerule',
            name='algorithm',
            field=models.CharField(default='sliding_window', max_length=20),
        ),
        migrations.AddConstraint(
            model_name='throttlerule',
            constraint=models.CheckConstraint(condition=models.Q(('estimator', 'fast'), ('algorithm', 'damper'), _connector='OR'), name='throttle_estimator_of_damper'),
        ),
        migrations.AddConstraint(
            model_name='throttlerule',
            constraint=models.CheckConstraint(condition=models.Q(('estimator__in', ['fast', 'average'])), name='throttle_estimator_known'),
        ),
        migrations.AddConstraint(
            model_name='throttlerule',
            constraint=models.CheckConstraint(condition=models.Q(('algorithm__in', ['fixed_window', 'sliding_log', 'sliding_window', 'token_bucket', 'leaky_bucket', 'gcra', 'concurrency', 'damper'])), name='throttle_algorithm_known'),
        ),
    ]
