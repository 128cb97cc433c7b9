import django_throttle.models.fields
import django_throttle.models.fields
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('django_throttle', '0001_initial'),
    ]

    operations = [
        migrations.RemoveConstraint(
            model_name='throttlerule',
            name='throttle_delay_of_leaky_bucket',
        ),
        migrations.RemoveConstraint(
            model_name='throttlerule',
            name='throttle_cost_range',
        ),
        migrations.AddField(
            model_name='throttlerule',
            name='audience',
            field=django_throttle.models.fields.NamesField(blank=True, default=(), help_text='Only calls of these, with commas in between: anonymous, authenticated, staff, group:editors, tenant:acme. One of them is enough. Empty: everybody.', max_length=1000, verbose_name='only for'),
        ),
        migrations.AddField(
            model_name='throttlerule',
            name='count_on',
            field=django_throttle.models.fields.StatusesField(blank=True, default=(), help_text='Only requests that are answered with one of these HTTP statuses use up the budget: 401, 403 for failed logins. Empty: all requests do.', max_length=300, verbose_name='count only answers'),
        ),
        migrations.AddField(
            model_name='throttlerule',
            name='enforce_at',
            field=models.FloatField(default=1.0, help_text='How many times the limit is used up before calls are refused. 1: at the limit itself. 2.5: at two and a half times; in between, calls pass and the client is told that nothing is left.', verbose_name='refuse at'),
        ),
        migrations.AddField(
            model_name='throttlerule',
            name='methods',
            field=django_throttle.models.fields.MethodsField(blank=True, default=(), help_text='Only requests of these HTTP methods, with commas in between: POST, PUT. GET covers HEAD too. Empty: every method.', max_length=100),
        ),
        migrations.AddField(
            model_name='throttlerule',
            name='warn_at',
            field=django_throttle.models.fields.SharesField(blank=True, default=(), help_text="Tell the site when use reaches these shares of the limit: 80 %, 100 %. Each is told once in a window, for each of those who have a budget; what is done then is the site's own code. Empty: never.", max_length=100),
        ),
        migrations.AlterField(
            model_name='throttlerule',
            name='cost',
            field=django_throttle.models.fields.CostField(default=1, help_text='How much of the budget one call takes, where the code says nothing else: a number, or the path of a function that a rule in settings has too.', max_length=200),
        ),
        migrations.AddConstraint(
            model_name='throttlerule',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(models.Q(('action', 'delay'), _negated=True), ('max_delay__isnull', True)), models.Q(('action__in', ['delay', 'shadow']), ('algorithm', 'leaky_bucket'), models.Q(('max_delay__isnull', True), ('max_delay__range', (0, 31622400)), _connector='OR')), _connector='OR'), name='throttle_delay_of_leaky_bucket', violation_error_message='To delay belongs to the leaky bucket, for 0 to 31622400 seconds.'),
        ),
        migrations.AddConstraint(
            model_name='throttlerule',
            constraint=models.CheckConstraint(condition=models.Q(('methods', ''), ('methods__regex', '^(GET|HEAD|POST|PUT|PATCH|DELETE|OPTIONS|TRACE|CONNECT)(,(GET|HEAD|POST|PUT|PATCH|DELETE|OPTIONS|TRACE|CONNECT))*$'), _connector='OR'), name='throttle_methods_shape', violation_error_message='Write HTTP methods, such as POST, PUT.'),
        ),
        migrations.AddConstraint(
            model_name='throttlerule',
            constraint=models.CheckConstraint(condition=models.Q(('audience', ''), ('audience__regex', '^(anonymous|authenticated|staff|group:[^ ,]([^,]*[^ ,])?|tenant:[^ ,]([^,]*[^ ,])?)(,(anonymous|authenticated|staff|group:[^ ,]([^,]*[^ ,])?|tenant:[^ ,]([^,]*[^ ,])?))*$'), _connector='OR'), name='throttle_audience_shape', violation_error_message='Write whom it is for: anonymous, authenticated, staff, group:NAME, tenant:NAME.'),
        ),
        migrations.AddConstraint(
            model_name='throttlerule',
            constraint=models.CheckConstraint(condition=models.Q(('count_on', ''), ('count_on__regex', '^[1-5][0-9][0-9](,[1-5][0-9][0-9])*$'), _connector='OR'), name='throttle_count_on_shape', violation_error_message='Write HTTP statuses, such as 401, 403.'),
        ),
        migrations.AddConstraint(
            model_name='throttlerule',
            constraint=models.CheckConstraint(condition=models.Q(('warn_at', ''), ('warn_at__regex', '^[0-9]{1,3}([.][0-9]+)?(,[0-9]{1,3}([.][0-9]+)?)*$'), _connector='OR'), name='throttle_warn_at_shape', violation_error_message='Write shares of the limit, such as 80 %, 100 %.'),
        ),
        migrations.AddConstraint(
            model_name='throttlerule',
            constraint=models.CheckConstraint(condition=models.Q(('cost__regex', '^([1-9][0-9]{0,7}|[^.,]+([.][^.,]+)+)$')), name='throttle_cost_shape', violation_error_message='Write a whole number, or the path of a function.'),
        ),
        migrations.AddConstraint(
            model_name='throttlerule',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('count_on', ''), ('methods', '')), ('events', 'request'), models.Q(('count_on', ''), ('events', 'connection')), _connector='OR'), name='throttle_http_of_requests', violation_error_message='Methods and statuses belong to rules of HTTP requests alone.'),
        ),
        migrations.AddConstraint(
            model_name='throttlerule',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('enforce_at', 1), ('warn_at', '')), models.Q(('algorithm', 'concurrency'), _negated=True), _connector='OR'), name='throttle_quota_of_rate', violation_error_message='Warnings, and a limit that is enforced later, belong to rates.'),
        ),
        migrations.AddConstraint(
            model_name='throttlerule',
            constraint=models.CheckConstraint(condition=models.Q(('enforce_at', 1), models.Q(('enforce_at__range', (1, 100)), models.Q(('action', 'delay'), _negated=True)), _connector='OR'), name='throttle_enforce_at_range', violation_error_message='Calls are refused at 1 to 100 times the limit; what is delayed, at the limit itself.'),
        ),
    ]
