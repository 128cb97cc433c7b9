import django_throttle.models.fields
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('django_throttle', '0002_rule_options'),
    ]

    operations = [
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
                ('limit', models.PositiveIntegerField(blank=True, null=True)),
                ('until', models.DateTimeField(blank=True, null=True)),
                ('reason', models.TextField()),
                ('created_by', models.CharField(blank=True, editable=False, max_length=150)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
            ],
            options={
                'verbose_name': 'override',
                'ordering': ('-created_at', '-pk'),
                'indexes': [models.Index(fields=['until'], name='throttle_override_until')],
                'constraints': [models.CheckConstraint(condition=models.Q(('kind__in', ['api_key', 'user', 'ip', 'tenant', 'group'])), name='throttle_override_kind_known'), models.CheckConstraint(condition=models.Q(('value', ''), _negated=True), name='throttle_override_value_not_empty'), models.CheckConstraint(condition=models.Q(models.Q(('kind', 'ip'), _negated=True), ('value__regex', '^[0-9a-f:.]+(/[0-9]{1,3})?$'), _connector='OR'), name='throttle_override_value_address'), models.CheckConstraint(condition=models.Q(models.Q(('kind', 'api_key'), _negated=True), ('value__regex', '^hash:[A-Za-z0-9_-]{22}$'), _connector='OR'), name='throttle_override_value_hashed'), models.CheckConstraint(condition=models.Q(('rules', ''), _negated=True), name='throttle_override_rules_not_empty'), models.CheckConstraint(condition=models.Q(('effect__in', ['block', 'replace', 'multiply', 'exempt'])), name='throttle_override_effect_known'), models.CheckConstraint(condition=models.Q(models.Q(models.Q(('effect', 'multiply'), _negated=True), ('factor__isnull', True)), models.Q(('effect', 'multiply'), ('factor__gt', 0), ('factor__isnull', False), ('factor__lte', 1000000)), _connector='OR'), name='throttle_override_factor_of_multiply'), models.CheckConstraint(condition=models.Q(models.Q(models.Q(('effect', 'replace'), _negated=True), ('limit__isnull', True), ('rate', '')), models.Q(('effect', 'replace'), models.Q(models.Q(('rate', ''), _negated=True), ('limit__isnull', False), _connector='OR')), _connector='OR'), name='throttle_override_limit_of_replace'), models.CheckConstraint(condition=models.Q(('rate', ''), ('rate__regex', '^[1-9][0-9]{0,7}/(ms|s|min|hour|day|week|month|[1-9][0-9]{0,10}(ms|s|m|h|d|w))(, [1-9][0-9]{0,7}/(ms|s|min|hour|day|week|month|[1-9][0-9]{0,10}(ms|s|m|h|d|w)))*$'), _connector='OR'), name='throttle_override_rate_shape'), models.CheckConstraint(condition=models.Q(('limit__isnull', True), models.Q(('limit__gte', 1), ('limit__lte', 94906265)), _connector='OR'), name='throttle_override_limit_range'), models.CheckConstraint(condition=models.Q(('reason__regex', '[^ ]')), name='throttle_override_reason_given')],
            },
        ),
    ]
