import django_throttle.models.fields
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
    ]

    operations = [
        migrations.CreateModel(
            name='ThrottleConnection',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
            ],
            options={
                'verbose_name': 'connection',
                'verbose_name_plural': 'connections',
                'permissions': [('close_throttleconnection', 'Can close connection')],
                'managed': False,
                'default_permissions': ('view',),
                'base_manager_name': 'objects',
            },
        ),
        migrations.CreateModel(
            name='ThrottleCandidate',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(editable=False, max_length=88, unique=True)),
                ('options', models.JSONField(editable=False)),
                ('share', models.FloatField(default=0.0)),
                ('starts_at', models.DateTimeField(blank=True, null=True)),
                ('created_by', models.CharField(blank=True, editable=False, max_length=150)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
            ],
            options={
                'verbose_name': 'candidate',
                'verbose_name_plural': 'candidates',
                'ordering': ('name',),
            },
        ),
        migrations.CreateModel(
            name='ThrottleChange',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('at', models.DateTimeField(auto_now_add=True, db_index=True)),
                ('kind', models.CharField(max_length=20)),
                ('name', models.CharField(blank=True, db_index=True, max_length=200)),
                ('row', models.PositiveBigIntegerField(blank=True, null=True)),
                ('action', models.CharField(max_length=30)),
                ('words', models.TextField()),
                ('before', models.JSONField(blank=True, null=True)),
                ('after', models.JSONField(blank=True, null=True)),
                ('who', models.CharField(blank=True, max_length=150)),
                ('via', models.CharField(blank=True, max_length=30)),
                ('reason', models.TextField(blank=True)),
                ('once', models.CharField(blank=True, editable=False, max_length=200, null=True, unique=True)),
            ],
            options={
                'verbose_name': 'change',
                'verbose_name_plural': 'changes',
                'ordering': ('-pk',),
                'default_permissions': ('view',),
            },
        ),
        migrations.CreateModel(
            name='ThrottleOverride',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('kind', models.CharField(default='user', max_length=20)),
                ('value', models.CharField(max_length=300)),
                ('rules', django_throttle.models.fields.NamesField(default=('*',), max_length=1000)),
                ('effect', models.CharField(default='multiply', max_length=20)),
                ('factor', models.FloatField(blank=True, null=True)),
                ('rate', django_throttle.models.fields.RatesField(blank=True, default='', max_length=300)),
                ('limit', models.PositiveBigIntegerField(blank=True, null=True)),
                ('until', models.DateTimeField(blank=True, null=True)),
                ('reason', models.TextField()),
                ('created_by', models.CharField(blank=True, editable=False, max_length=150)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
            ],
            options={
                'verbose_name': 'override',
                'verbose_name_plural': 'overrides',
                'ordering': ('-created_at', '-pk'),
                'indexes': [models.Index(fields=['until'], name='throttle_override_until')],
                'constraints': [models.CheckConstraint(condition=models.Q(('kind__in', ['api_key', 'user', 'ip', 'tenant', 'group'])), name='throttle_override_kind_known'), models.CheckConstraint(condition=models.Q(('value', ''), _negated=True), name='throttle_override_value_not_empty'), models.CheckConstraint(condition=models.Q(models.Q(('kind', 'ip'), _negated=True), ('value__regex', '^[0-9a-f:.]+(/[0-9]{1,3})?$'), _connector='OR'), name='throttle_override_value_address'), models.CheckConstraint(condition=models.Q(models.Q(('kind', 'api_key'), _negated=True), ('value__regex', '^hash:[A-Za-z0-9_-]{22}$'), _connector='OR'), name='throttle_override_value_hashed'), models.CheckConstraint(condition=models.Q(('rules', ''), _negated=True), name='throttle_override_rules_not_empty'), models.CheckConstraint(condition=models.Q(('effect__in', ['block', 'replace', 'multiply', 'exempt'])), name='throttle_override_effect_known'), models.CheckConstraint(condition=models.Q(models.Q(models.Q(('effect', 'multiply'), _negated=True), ('factor__isnull', True)), models.Q(('effect', 'multiply'), ('factor__gt', 0), ('factor__isnull', False), ('factor__lte', 1000000)), _connector='OR'), name='throttle_override_factor_of_multiply'), models.CheckConstraint(condition=models.Q(models.Q(models.Q(('effect', 'replace'), _negated=True), ('limit__isnull', True), ('rate', '')), models.Q(('effect', 'replace'), models.Q(models.Q(('rate', ''), _negated=True), ('limit__isnull', False), _connector='OR')), _connector='OR'), name='throttle_override_limit_of_replace'), models.CheckConstraint(condition=models.Q(('rate', ''), ('rate__regex', '^[1-9][0-9]{0,14}/(ms|s|min|hour|day|week|month|[1-9][0-9]{0,10}(ms|s|m|h|d|w))(, [1-9][0-9]{0,14}/(ms|s|min|hour|day|week|month|[1-9][0-9]{0,10}(ms|s|m|h|d|w)))*$'), _connector='OR'), name='throttle_override_rate_shape'), models.CheckConstraint(condition=models.Q(('limit__isnull', True), models.Q(('limit__gte', 1), ('limit__lte', 999999999999999)), _connector='OR'), name='throttle_override_limit_range'), models.CheckConstraint(condition=models.Q(('reason__regex', '[^ ]')), name='throttle_override_reason_given')],
            },
        ),
        migrations.CreateModel(
            name='ThrottleRule',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('description', models.TextField(blank=True)),
                ('updated_at', models.DateTimeField(auto_now=True)),
                ('name', models.CharField(max_length=100, unique=True)),
                ('rate', django_throttle.models.fields.RatesField(blank=True, default='', max_length=300)),
                ('key', models.CharField(default='user_or_ip', max_length=200)),
                ('scopes', django_throttle.models.fields.NamesField(default=('*',), max_length=1000)),
                ('events', django_throttle.models.fields.NamesField(default=('request',), max_length=100)),
                ('methods', django_throttle.models.fields.MethodsField(blank=True, default=(), max_length=100)),
                ('audience', django_throttle.models.fields.NamesField(blank=True, default=(), max_length=1000)),
                ('algorithm', models.CharField(default='sliding_window', max_length=20)),
                ('limit', models.PositiveBigIntegerField(blank=True, null=True)),
                ('burst', models.PositiveBigIntegerField(blank=True, null=True)),
                ('plans', django_throttle.models.fields.PlansField(blank=True, default=(), max_length=2000)),
                ('refill', models.CharField(default='continuous', max_length=20)),
                ('resolution', models.PositiveSmallIntegerField(default=1)),
                ('strict', models.BooleanField(default=False)),
                ('timezone', models.CharField(blank=True, default='', max_length=100)),
                ('estimator', models.CharField(default='fast', max_length=20)),
                ('unit', models.CharField(default='calls', max_length=20)),
                ('reserve', django_throttle.models.fields.CostField(blank=True, default='', max_length=200)),
                ('measure', models.CharField(blank=True, default='', max_length=200)),
                ('cost', django_throttle.models.fields.CostField(default=1, max_length=200)),
                ('count_on', django_throttle.models.fields.StatusesField(blank=True, default=(), max_length=300)),
                ('refund_on', django_throttle.models.fields.ResultsField(blank=True, default=(), max_length=300)),
                ('count_denied', models.BooleanField(default=False)),
                ('prepaid', models.BooleanField(default=False)),
                ('enforce_at', models.FloatField(default=1.0)),
                ('warn_at', django_throttle.models.fields.SharesField(blank=True, default=(), max_length=100)),
                ('action', models.CharField(default='reject', max_length=20)),
                ('max_queue', models.PositiveBigIntegerField(blank=True, null=True)),
                ('max_delay', models.FloatField(blank=True, null=True)),
                ('at_limit', models.CharField(default='reject', max_length=20)),
                ('on_store_failure', models.CharField(default='local', max_length=20)),
                ('enabled', models.BooleanField(default=True)),
            ],
            options={
                'verbose_name': 'rule',
                'verbose_name_plural': 'rules',
                'ordering': ('name',),
                'constraints': [models.CheckConstraint(condition=models.Q(('name', ''), _negated=True), name='throttle_name_not_empty'), models.CheckConstraint(condition=models.Q(('scopes', ''), _negated=True), name='throttle_scopes_not_empty'), models.CheckConstraint(condition=models.Q(models.Q(('algorithm', 'concurrency'), ('events__regex', '^(inflight|connection)(,(inflight|connection))*$')), models.Q(models.Q(('algorithm', 'concurrency'), _negated=True), ('events__regex', '^(request|connect|message|send|publish|task)(,(request|connect|message|send|publish|task))*$')), _connector='OR'), name='throttle_events_known'), models.CheckConstraint(condition=models.Q(models.Q(('algorithm', 'concurrency'), ('limit__isnull', False), ('rate', '')), models.Q(models.Q(('algorithm', 'concurrency'), _negated=True), models.Q(('rate', ''), _negated=True), ('limit__isnull', True)), _connector='OR'), name='throttle_rate_or_limit'), models.CheckConstraint(condition=models.Q(('key__regex', '^[a-z][a-z0-9_]*([+][a-z][a-z0-9_]*)*$'), ('key__contains', '.'), _connector='OR'), name='throttle_key_known'), models.CheckConstraint(condition=models.Q(models.Q(models.Q(('action__in', ['defer', 'delay']), _negated=True), ('max_delay__isnull', True)), models.Q(('action__in', ['defer', 'delay', 'shadow']), models.Q(('algorithm__in', ['concurrency', 'damper', 'fixed_window', 'gcra', 'sliding_log', 'sliding_window', 'token_bucket']), _negated=True), models.Q(('max_delay__isnull', True), ('max_delay__range', (0, 31622400)), _connector='OR')), _connector='OR'), name='throttle_delay_of_leaky_bucket'), models.CheckConstraint(condition=models.Q(models.Q(('count_on', ''), ('methods', ''), ('refund_on', '')), ('events', 'request'), models.Q(('count_on', ''), ('events', 'inflight'), ('refund_on', '')), _connector='OR'), name='throttle_http_of_requests'), models.CheckConstraint(condition=models.Q(models.Q(('enforce_at', 1), ('warn_at', '')), models.Q(('algorithm', 'concurrency'), _negated=True), _connector='OR'), name='throttle_quota_of_rate'), models.CheckConstraint(condition=models.Q(models.Q(('unit', 'bytes'), _negated=True), ('events__regex', '^(request|message|send)(,(request|message|send))*$'), _connector='OR'), name='throttle_bytes_of_frames'), models.CheckConstraint(condition=models.Q(models.Q(('key', 'connection'), _negated=True), ('events__regex', '^(message|send)(,(message|send))*$'), _connector='OR'), name='throttle_connection_of_frames'), models.CheckConstraint(condition=models.Q(('rate', ''), ('rate__regex', '^[1-9][0-9]{0,14}/(ms|s|min|hour|day|week|month|[1-9][0-9]{0,10}(ms|s|m|h|d|w))(, [1-9][0-9]{0,14}/(ms|s|min|hour|day|week|month|[1-9][0-9]{0,10}(ms|s|m|h|d|w)))*$'), _connector='OR'), name='throttle_rate_shape'), models.CheckConstraint(condition=models.Q(('methods', ''), ('methods__regex', '^(GET|HEAD|POST|PUT|PATCH|DELETE|OPTIONS|TRACE|CONNECT)(,(GET|HEAD|POST|PUT|PATCH|DELETE|OPTIONS|TRACE|CONNECT))*$'), _connector='OR'), name='throttle_methods_shape'), models.CheckConstraint(condition=models.Q(('audience', ''), ('audience__regex', '^(anonymous|authenticated|staff|group:[^ ,]([^,]*[^ ,])?|tenant:[^ ,]([^,]*[^ ,])?)(,(anonymous|authenticated|staff|group:[^ ,]([^,]*[^ ,])?|tenant:[^ ,]([^,]*[^ ,])?))*$'), _connector='OR'), name='throttle_audience_shape'), models.CheckConstraint(condition=models.Q(('algorithm__regex', '^[a-z][a-z0-9_]*$')), name='throttle_algorithm_shape'), models.CheckConstraint(condition=models.Q(('limit__isnull', True), models.Q(('limit__gte', 1), ('limit__lte', 999999999999999)), _connector='OR'), name='throttle_limit_range'), models.CheckConstraint(condition=models.Q(('burst__isnull', True), models.Q(('burst__gte', 1), ('burst__lte', 999999999999999)), _connector='OR'), name='throttle_burst_range'), models.CheckConstraint(condition=models.Q(('burst__isnull', True), models.Q(('algorithm__in', ['concurrency', 'damper', 'fixed_window', 'sliding_log', 'sliding_window']), _negated=True), _connector='OR'), name='throttle_burst_of_bucket'), models.CheckConstraint(condition=models.Q(('plans', ''), ('plans__regex', '^[^=\n]+ = [^=\n]+(\n[^=\n]+ = [^=\n]+)*$'), _connector='OR'), name='throttle_plans_shape'), models.CheckConstraint(condition=models.Q(('refill__in', ['continuous', 'interval'])), name='throttle_refill_known'), models.CheckConstraint(condition=models.Q(('refill', 'continuous'), models.Q(('algorithm__in', ['concurrency', 'damper', 'fixed_window', 'gcra', 'leaky_bucket', 'sliding_log', 'sliding_window']), _negated=True), _connector='OR'), name='throttle_refill_of_token_bucket'), models.CheckConstraint(condition=models.Q(('resolution__isnull', True), models.Q(('resolution__gte', 1), ('resolution__lte', 30)), _connector='OR'), name='throttle_resolution_range'), models.CheckConstraint(condition=models.Q(('resolution', 1), models.Q(('algorithm__in', ['concurrency', 'damper', 'fixed_window', 'gcra', 'leaky_bucket', 'sliding_log', 'token_bucket']), _negated=True), _connector='OR'), name='throttle_resolution_of_sliding_window'), models.CheckConstraint(condition=models.Q(('strict', False), models.Q(('algorithm__in', ['concurrency', 'damper', 'fixed_window', 'gcra', 'leaky_bucket', 'sliding_log', 'token_bucket']), _negated=True), _connector='OR'), name='throttle_strict_of_sliding_window'), models.CheckConstraint(condition=models.Q(('timezone', ''), models.Q(('algorithm__in', ['concurrency', 'damper', 'gcra', 'leaky_bucket', 'sliding_log', 'sliding_window', 'token_bucket']), _negated=True), _connector='OR'), name='throttle_timezone_of_fixed_window'), models.CheckConstraint(condition=models.Q(('estimator__in', ['average', 'fast'])), name='throttle_estimator_known'), models.CheckConstraint(condition=models.Q(('estimator', 'fast'), models.Q(('algorithm__in', ['concurrency', 'fixed_window', 'gcra', 'leaky_bucket', 'sliding_log', 'sliding_window', 'token_bucket']), _negated=True), _connector='OR'), name='throttle_estimator_of_damper'), models.CheckConstraint(condition=models.Q(('unit__in', ['bytes', 'calls', 'cpu_ms', 'db_ms', 'queries', 'response_bytes', 'rows', 'units', 'wall_ms'])), name='throttle_unit_known'), models.CheckConstraint(condition=models.Q(('reserve', ''), ('reserve__regex', '^(mean|0|[1-9][0-9]{0,14}|[^.,]+([.][^.,]+)+)$'), _connector='OR'), name='throttle_reserve_shape'), models.CheckConstraint(condition=models.Q(('measure', ''), ('measure__regex', '^[^.,]+([.][^.,]+)+$'), _connector='OR'), name='throttle_measure_shape'), models.CheckConstraint(condition=models.Q(('cost__regex', '^([1-9][0-9]{0,14}|[^.,]+([.][^.,]+)+)$')), name='throttle_cost_shape'), models.CheckConstraint(condition=models.Q(('count_on', ''), ('count_on__regex', '^([1-5][0-9][0-9])(,([1-5][0-9][0-9]))*$'), _connector='OR'), name='throttle_count_on_shape'), models.CheckConstraint(condition=models.Q(('refund_on', ''), ('refund_on__regex', '^([1-5]([0-9][0-9]|xx)|cancelled)(,([1-5]([0-9][0-9]|xx)|cancelled))*$'), _connector='OR'), name='throttle_refund_on_shape'), models.CheckConstraint(condition=models.Q(('enforce_at', 1.0), models.Q(('enforce_at__range', (1, 100)), models.Q(('action__in', ['delay', 'defer']), _negated=True)), _connector='OR'), name='throttle_enforce_at_range'), models.CheckConstraint(condition=models.Q(('warn_at', ''), ('warn_at__regex', '^([0-9]{1,3}([.][0-9]+)?)(,([0-9]{1,3}([.][0-9]+)?))*$'), _connector='OR'), name='throttle_warn_at_shape'), models.CheckConstraint(condition=models.Q(('action__in', ['defer', 'delay', 'reject', 'shadow'])), name='throttle_action_known'), models.CheckConstraint(condition=models.Q(('max_queue__isnull', True), models.Q(('max_queue__gte', 1), ('max_queue__lte', 999999999999999)), _connector='OR'), name='throttle_max_queue_range'), models.CheckConstraint(condition=models.Q(('max_queue__isnull', True), models.Q(('algorithm__in', ['concurrency', 'damper', 'fixed_window', 'gcra', 'sliding_log', 'sliding_window', 'token_bucket']), _negated=True), _connector='OR'), name='throttle_max_queue_of_leaky_bucket'), models.CheckConstraint(condition=models.Q(('at_limit__in', ['evict_idle', 'evict_oldest', 'reject'])), name='throttle_at_limit_known'), models.CheckConstraint(condition=models.Q(('at_limit', 'reject'), models.Q(models.Q(('algorithm__in', ['damper', 'fixed_window', 'gcra', 'leaky_bucket', 'sliding_log', 'sliding_window', 'token_bucket']), _negated=True), ('events__contains', 'connection')), _connector='OR'), name='throttle_at_limit_of_concurrency'), models.CheckConstraint(condition=models.Q(('on_store_failure__in', ['allow', 'deny', 'local'])), name='throttle_on_store_failure_known')],
            },
        ),
    ]
