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
                ('kind', models.CharField(choices=[('user', 'User'), ('ip', 'Address or network'), ('group', 'Group'), ('api_key', 'API key'), ('tenant', 'Tenant')], default='user', help_text='Whom it is for. Where several overrides speak of one call, the most specific holds: API key before user, then address, network (the smaller first), tenant, group.', max_length=20, verbose_name='subject')),
                ('value', models.CharField(help_text='User: an id, a name or an e-mail address. Address: 203.0.113.9 or 2001:db8::1, which stands for its network of 64 bits; or a network, 203.0.113.0/24. Group and tenant: the name. API key: the key itself, of which only a hash is stored.', max_length=300, verbose_name='who')),
                ('rules', django_throttle.models.fields.NamesField(default=('*',), help_text='The names of rules, with commas in between. * stands for any text, so * alone is every rule.', max_length=1000)),
                ('effect', models.CharField(choices=[('multiply', 'Multiply the limit'), ('replace', 'Replace the limit'), ('exempt', 'Exempt'), ('block', 'Block')], default='multiply', help_text='Multiply: the rules hold with another limit, and what was used counts on. Replace: with the rate or limit below. Exempt: the rules do not hold; what is open counts all the same. Block: every call that the rules cover is refused. Among overrides for the same subject, block goes before replace, multiply and exempt, and a later one before an earlier one.', max_length=20)),
                ('factor', models.FloatField(blank=True, help_text='To multiply: 2 doubles the limit, 0.5 halves it. At least one call stays.', null=True)),
                ('rate', django_throttle.models.fields.RatesField(blank=True, default='', help_text='To replace the limit of rules of rates: 500/min, or several with commas in between. A window that the rule does not have starts to count afresh.', max_length=300)),
                ('limit', models.PositiveIntegerField(blank=True, help_text='To replace the limit of concurrency rules: how many may be open at once.', null=True)),
                ('until', models.DateTimeField(blank=True, help_text='When it ends by itself. Empty: it holds until somebody ends it.', null=True)),
                ('reason', models.TextField(help_text='Why, for whoever reads it next. Clients never see it.')),
                ('created_by', models.CharField(blank=True, editable=False, help_text='Who made it.', max_length=150, verbose_name='made by')),
                ('created_at', models.DateTimeField(auto_now_add=True, help_text='When it was made.', verbose_name='made')),
            ],
            options={
                'verbose_name': 'override',
                'ordering': ('-created_at', '-pk'),
                'indexes': [models.Index(fields=['until'], name='throttle_override_until')],
                'constraints': [models.CheckConstraint(condition=models.Q(('kind__in', ['api_key', 'user', 'ip', 'tenant', 'group'])), name='throttle_override_kind_known', violation_error_message='Choose whom it is for.'), models.CheckConstraint(condition=models.Q(('value', ''), _negated=True), name='throttle_override_value_not_empty', violation_error_message='Say whom it is for.'), models.CheckConstraint(condition=models.Q(models.Q(('kind', 'ip'), _negated=True), ('value__regex', '^[0-9a-f:.]+(/[0-9]{1,3})?$'), _connector='OR'), name='throttle_override_value_address', violation_error_message='Write an address like 203.0.113.9, or a network like 203.0.113.0/24.'), models.CheckConstraint(condition=models.Q(models.Q(('kind', 'api_key'), _negated=True), ('value__regex', '^hash:[A-Za-z0-9_-]{22}$'), _connector='OR'), name='throttle_override_value_hashed', violation_error_message='An API key is stored as its keyed hash.'), models.CheckConstraint(condition=models.Q(('rules', ''), _negated=True), name='throttle_override_rules_not_empty', violation_error_message='An override needs a rule; * is every rule.'), models.CheckConstraint(condition=models.Q(('effect__in', ['block', 'replace', 'multiply', 'exempt'])), name='throttle_override_effect_known', violation_error_message='Choose what happens.'), models.CheckConstraint(condition=models.Q(models.Q(models.Q(('effect', 'multiply'), _negated=True), ('factor__isnull', True)), models.Q(('effect', 'multiply'), ('factor__gt', 0), ('factor__isnull', False), ('factor__lte', 1000000)), _connector='OR'), name='throttle_override_factor_of_multiply', violation_error_message='To multiply needs a factor above 0 and of at most 1,000,000, which nothing else has.'), models.CheckConstraint(condition=models.Q(models.Q(models.Q(('effect', 'replace'), _negated=True), ('limit__isnull', True), ('rate', '')), models.Q(('effect', 'replace'), models.Q(models.Q(('rate', ''), _negated=True), ('limit__isnull', False), _connector='OR')), _connector='OR'), name='throttle_override_limit_of_replace', violation_error_message='To replace needs a rate, a limit or both, which nothing else has.'), models.CheckConstraint(condition=models.Q(('rate', ''), ('rate__regex', '^[1-9][0-9]{0,7}/(ms|s|min|hour|day|week|month|[1-9][0-9]{0,10}(ms|s|m|h|d|w))(, [1-9][0-9]{0,7}/(ms|s|min|hour|day|week|month|[1-9][0-9]{0,10}(ms|s|m|h|d|w)))*$'), _connector='OR'), name='throttle_override_rate_shape', violation_error_message='Write a rate like 100/min, 5/10m, 10/s or 1000/day.'), models.CheckConstraint(condition=models.Q(('limit__isnull', True), models.Q(('limit__gte', 1), ('limit__lte', 94906265)), _connector='OR'), name='throttle_override_limit_range', violation_error_message='limit is a whole number from 1 to 94906265.'), models.CheckConstraint(condition=models.Q(('reason__regex', '[^ ]')), name='throttle_override_reason_given', violation_error_message='Say why, for whoever reads it next.')],
            },
        ),
    ]
