import django_throttle.models.fields
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
    ]

    operations = [
        migrations.CreateModel(
            name='ThrottleRule',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=100, unique=True)),
                ('enabled', models.BooleanField(default=True)),
                ('algorithm', models.CharField(default='sliding_window', max_length=20)),
                ('rate', django_throttle.models.fields.RatesField(blank=True, default='', max_length=300)),
                ('limit', models.PositiveIntegerField(blank=True, null=True)),
                ('burst', models.PositiveIntegerField(blank=True, null=True)),
                ('refill', models.CharField(default='continuous', max_length=20)),
                ('resolution', models.PositiveSmallIntegerField(default=1)),
                ('strict', models.BooleanField(default=False)),
                ('timezone', models.CharField(blank=True, default='', max_length=100)),
                ('key', models.CharField(default='user_or_ip', max_length=200)),
                ('scopes', django_throttle.models.fields.NamesField(default=('*',), max_length=1000)),
                ('events', django_throttle.models.fields.NamesField(default=('request',), max_length=100)),
                ('action', models.CharField(default='reject', max_length=20)),
                ('max_delay', models.FloatField(blank=True, null=True)),
                ('on_store_failure', models.CharField(default='local', max_length=20)),
                ('cost', models.PositiveIntegerField(default=1)),
                ('count_denied', models.BooleanField(default=False)),
                ('description', models.TextField(blank=True)),
                ('updated_at', models.DateTimeField(auto_now=True)),
            ],
            options={
                'verbose_name': 'rule',
                'ordering': ('name',),
                'constraints': [models.CheckConstraint(condition=models.Q(('name', ''), _negated=True), name='throttle_name_not_empty'), models.CheckConstraint(condition=models.Q(('scopes', ''), _negated=True), name='throttle_scopes_not_empty'), models.CheckConstraint(condition=models.Q(models.Q(('algorithm', 'concurrency'), ('events', 'connection')), models.Q(models.Q(('algorithm', 'concurrency'), _negated=True), ('events__regex', '^(request|connect|message|send|publish|task)(,(request|connect|message|send|publish|task))*$')), _connector='OR'), name='throttle_events_known'), models.CheckConstraint(condition=models.Q(('rate', ''), ('rate__regex', '^[1-9][0-9]{0,7}/(ms|s|min|hour|day|week|month|[1-9][0-9]{0,10}(ms|s|m|h|d|w))(, [1-9][0-9]{0,7}/(ms|s|min|hour|day|week|month|[1-9][0-9]{0,10}(ms|s|m|h|d|w)))*$'), _connector='OR'), name='throttle_rate_shape'), models.CheckConstraint(condition=models.Q(models.Q(('algorithm', 'concurrency'), ('limit__isnull', False), ('rate', '')), models.Q(models.Q(('algorithm', 'concurrency'), _negated=True), models.Q(('rate', ''), _negated=True), ('limit__isnull', True)), _connector='OR'), name='throttle_rate_or_limit'), models.CheckConstraint(condition=models.Q(('burst__isnull', True), ('algorithm__in', ['token_bucket', 'leaky_bucket', 'gcra']), _connector='OR'), name='throttle_burst_of_bucket'), models.CheckConstraint(condition=models.Q(('key__in', ['user', 'ip', 'user_or_ip', 'session', 'everyone']), ('key__contains', '.'), _connector='OR'), name='throttle_key_known'), models.CheckConstraint(condition=models.Q(('refill', 'continuous'), ('algorithm', 'token_bucket'), _connector='OR'), name='throttle_refill_of_token_bucket'), models.CheckConstraint(condition=models.Q(('timezone', ''), ('algorithm', 'fixed_window'), _connector='OR'), name='throttle_timezone_of_fixed_window'), models.CheckConstraint(condition=models.Q(models.Q(models.Q(('action', 'delay'), _negated=True), ('max_delay__isnull', True)), models.Q(('action', 'delay'), ('algorithm', 'leaky_bucket'), models.Q(('max_delay__isnull', True), ('max_delay__range', (0, 31622400)), _connector='OR')), _connector='OR'), name='throttle_delay_of_leaky_bucket'), models.CheckConstraint(condition=models.Q(('algorithm__in', ['fixed_window', 'sliding_log', 'sliding_window', 'token_bucket', 'leaky_bucket', 'gcra', 'concurrency'])), name='throttle_algorithm_known'), models.CheckConstraint(condition=models.Q(('action__in', ['reject', 'shadow', 'delay'])), name='throttle_action_known'), models.CheckConstraint(condition=models.Q(('refill__in', ['continuous', 'interval'])), name='throttle_refill_known'), models.CheckConstraint(condition=models.Q(('on_store_failure__in', ['local', 'allow', 'deny'])), name='throttle_on_store_failure_known'), models.CheckConstraint(condition=models.Q(('limit__isnull', True), models.Q(('limit__gte', 1), ('limit__lte', 94906265)), _connector='OR'), name='throttle_limit_range'), models.CheckConstraint(condition=models.Q(('burst__isnull', True), models.Q(('burst__gte', 1), ('burst__lte', 94906265)), _connector='OR'), name='throttle_burst_range'), models.CheckConstraint(condition=models.Q(('cost__isnull', True), models.Q(('cost__gte', 1), ('cost__lte', 94906265)), _connector='OR'), name='throttle_cost_range'), models.CheckConstraint(condition=models.Q(('resolution__isnull', True), models.Q(('resolution__gte', 1), ('resolution__lte', 30)), _connector='OR'), name='throttle_resolution_range')],
            },
        ),
    ]
