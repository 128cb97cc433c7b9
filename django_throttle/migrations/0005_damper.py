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
            field=models.CharField(choices=[('fast', 'Fast'), ('average', 'Average of 24 seconds')], default='fast', help_text='For the damper: how it finds out how much is attempted. Fast reacts within seconds; the average of 24 seconds takes longer and wavers less.', max_length=20),
        ),
        migrations.AlterField(
            model_name='throttlerule',
            name='algorithm',
            field=models.CharField(choices=[('sliding_window', 'Sliding window'), ('sliding_log', 'Sliding log'), ('fixed_window', 'Fixed window'), ('token_bucket', 'Token bucket'), ('leaky_bucket', 'Leaky bucket'), ('gcra', 'GCRA'), ('concurrency', 'Concurrency'), ('damper', 'Damper')], default='sliding_window', help_text='How calls are counted. Sliding window: evenly, right for most rules. Sliding log: exactly, for small limits. Fixed window: afresh every minute, hour or day, so twice the rate may pass around the turn. Token bucket and GCRA: refilled evenly, with bursts. Leaky bucket: drained evenly, can delay. Concurrency: not a rate, but how many connections are open at once.', max_length=20),
        ),
        migrations.AddConstraint(
            model_name='throttlerule',
            constraint=models.CheckConstraint(condition=models.Q(('estimator', 'fast'), ('algorithm', 'damper'), _connector='OR'), name='throttle_estimator_of_damper', violation_error_message='An estimator belongs to the damper.'),
        ),
        migrations.AddConstraint(
            model_name='throttlerule',
            constraint=models.CheckConstraint(condition=models.Q(('estimator__in', ['fast', 'average'])), name='throttle_estimator_known', violation_error_message='estimator is not one that this version knows.'),
        ),
        migrations.AddConstraint(
            model_name='throttlerule',
            constraint=models.CheckConstraint(condition=models.Q(('algorithm__in', ['fixed_window', 'sliding_log', 'sliding_window', 'token_bucket', 'leaky_bucket', 'gcra', 'concurrency', 'damper'])), name='throttle_algorithm_known', violation_error_message='algorithm is not one that this version knows.'),
        ),
    ]
