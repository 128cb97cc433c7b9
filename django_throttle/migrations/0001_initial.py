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
                ('rules', models.CharField(default=('*',), max_length=1000)),
                ('effect', models.CharField(default='multiply', max_length=20)),
                ('factor', models.FloatField(blank=True, null=True)),
                ('rate', models.CharField(blank=True, default='', max_length=300)),
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
                'constraints': [models.CheckConstraint(condition=models.Q(('value', ''), _negated=True), name='throttle_override_value_not_empty'), models.CheckConstraint(condition=models.Q(models.Q(('kind', 'ip'), _negated=True), ('value__regex', '^[0-9a-f:.]+(/[0-9]{1,3})?$'), _connector='OR'), name='throttle_override_value_address'), models.CheckConstraint(condition=models.Q(models.Q(('kind', 'api_key'), _negated=True), ('value__regex', '^hash:[A-Za-z0-9_-]{22}$'), _connector='OR'), name='throttle_override_value_hashed'), models.CheckConstraint(condition=models.Q(('rules', ''), _negated=True), name='throttle_override_rules_not_empty'), models.CheckConstraint(condition=models.Q(('effect__in', ['block', 'replace', 'multiply', 'exempt'])), name='throttle_override_effect_known'), models.CheckConstraint(condition=models.Q(models.Q(models.Q(('effect', 'multiply'), _negated=True), ('factor__isnull', True)), models.Q(('effect', 'multiply'), ('factor__gt', 0), ('factor__isnull', False), ('factor__lte', 1000000)), _connector='OR'), name='throttle_override_factor_of_multiply'), models.CheckConstraint(condition=models.Q(models.Q(models.Q(('effect', 'replace'), _negated=True), ('limit__isnull', True), ('rate', '')), models.Q(('effect', 'replace'), models.Q(models.Q(('rate', ''), _negated=True), ('limit__isnull', False), _connector='OR')), _connector='OR'), name='throttle_override_limit_of_replace'), models.CheckConstraint(condition=models.Q(('reason__regex', '[^ ]')), name='throttle_override_reason_given'), models.CheckConstraint(condition=models.Q(('rate', ''), ('rate__regex', '^[1-9][0-9]{0,14}/(ms|s|min|hour|day|week|month|[1-9][0-9]{0,10}(ms|s|m|h|d|w))(, [1-9][0-9]{0,14}/(ms|s|min|hour|day|week|month|[1-9][0-9]{0,10}(ms|s|m|h|d|w)))*$'), _connector='OR'), name='throttle_override_rate_shape'), models.CheckConstraint(condition=models.Q(('limit__isnull', True), models.Q(('limit__gte', 1), ('limit__lte', 999999999999999)), _connector='OR'), name='throttle_override_limit_range')],
            },
        ),
        migrations.CreateModel(
            name='ThrottleRule',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=100, unique=True)),
                ('enabled', models.BooleanField(default=True)),
                ('rate', models.CharField(blank=True, default='', max_length=300)),
                ('limit', models.PositiveBigIntegerField(blank=True, null=True)),
                ('algorithm', models.CharField(default='sliding_window', max_length=100)),
                ('key', models.CharField(default='user_or_ip', max_length=200)),
                ('scopes', models.CharField(default=('*',), max_length=1000)),
                ('events', models.CharField(default=('request',), max_length=300)),
                ('options', models.JSONField(blank=True, default=dict)),
                ('description', models.TextField(blank=True)),
                ('updated_at', models.DateTimeField(auto_now=True)),
            ],
            options={
                'verbose_name': 'rule',
                'verbose_name_plural': 'rules',
                'ordering': ('name',),
                'constraints': [models.CheckConstraint(condition=models.Q(('name', ''), _negated=True), name='throttle_name_not_empty'), models.CheckConstraint(condition=models.Q(('scopes', ''), _negated=True), name='throttle_scopes_not_empty'), models.CheckConstraint(condition=models.Q(('events', ''), _negated=True), name='throttle_events_not_empty'), models.CheckConstraint(condition=models.Q(('rate', ''), ('rate__regex', '^[1-9][0-9]{0,14}/(ms|s|min|hour|day|week|month|[1-9][0-9]{0,10}(ms|s|m|h|d|w))(, [1-9][0-9]{0,14}/(ms|s|min|hour|day|week|month|[1-9][0-9]{0,10}(ms|s|m|h|d|w)))*$'), _connector='OR'), name='throttle_rate_shape'), models.CheckConstraint(condition=models.Q(('limit__isnull', True), models.Q(('limit__gte', 1), ('limit__lte', 999999999999999)), _connector='OR'), name='throttle_limit_range')],
            },
        ),
        migrations.CreateModel(
            name='ThrottleExplanation',
            fields=[
            ],
            options={
                'verbose_name': 'Why is a caller refused?',
                'verbose_name_plural': 'Why is a caller refused?',
                'proxy': True,
                'default_permissions': (),
                'indexes': [],
                'constraints': [],
            },
            bases=('django_throttle.throttlerule',),
        ),
    ]
