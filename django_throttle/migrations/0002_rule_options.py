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
            field=django_throttle.models.fields.NamesField(blank=True, default=(), max_length=1000),
        ),
        migrations.AddField(
            model_name='throttlerule',
            name='count_on',
            field=django_throttle.models.fields.StatusesField(blank=True, default=(), max_length=300),
        ),
        migrations.AddField(
            model_name='throttlerule',
            name='enforce_at',
            field=models.FloatField(default=1.0),
        ),
        migrations.AddField(
            model_name='throttlerule',
            name='methods',
            field=django_throttle.models.fields.MethodsField(blank=True, default=(), max_length=100),
        ),
        migrations.AddField(
            model_name='throttlerule',
            name='warn_at',
            field=django_throttle.models.fields.SharesField(blank=True, default=(), max_length=100),
        ),
        migrations.AlterField(
            model_name='throttlerule',
            name='cost',
            field=django_throttle.models.fields.CostField(default=1, max_length=200),
        ),
        migrations.AddConstraint(
            model_name='throttlerule',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(models.Q(('action', 'delay'), _negated=True), ('max_delay__isnull', True)), models.Q(('action__in', ['delay', 'shadow']), ('algorithm', 'leaky_bucket'), models.Q(('max_delay__isnull', True), ('max_delay__range', (0, 31622400)), _connector='OR')), _connector='OR'), name='throttle_delay_of_leaky_bucket'),
        ),
        migrations.AddConstraint(
            model_name='throttlerule',
            constraint=models.CheckConstraint(condition=models.Q(('methods', ''), ('methods__regex', '^(GET|HEAD|POST|PUT|PATCH|DELETE|OPTIONS|TRACE|CONNECT)(,(GET|HEAD|POST|PUT|PATCH|DELETE|OPTIONS|TRACE|CONNECT))*$'), _connector='OR'), name='throttle_methods_shape'),
        ),
        migrations.AddConstraint(
            model_name='throttlerule',
            constraint=models.CheckConstraint(condition=models.Q(('audience', ''), ('audience__regex', '^(anonymous|authenticated|staff|group:[^ ,]([^,]*[^ ,])?|tenant:[^ ,]([^,]*[^ ,])?)(,(anonymous|authenticated|staff|group:[^ ,]([^,]*[^ ,])?|tenant:[^ ,]([^,]*[^ ,])?))*$'), _connector='OR'), name='throttle_audience_shape'),
        ),
        migrations.AddConstraint(
            model_name='throttlerule',
            constraint=models.CheckConstraint(condition=models.Q(('count_on', ''), ('count_on__regex', '^[1-5][0-9][0-9](,[1-5][0-9][0-9])*$'), _connector='OR'), name='throttle_count_on_shape'),
        ),
        migrations.AddConstraint(
            model_name='throttlerule',
            constraint=models.CheckConstraint(condition=models.Q(('warn_at', ''), ('warn_at__regex', '^[0-9]{1,3}([.][0-9]+)?(,[0-9]{1,3}([.][0-9]+)?)*$'), _connector='OR'), name='throttle_warn_at_shape'),
        ),
        migrations.AddConstraint(
            model_name='throttlerule',
            constraint=models.CheckConstraint(condition=models.Q(('cost__regex', '^([1-9][0-9]{0,7}|[^.,]+([.][^.,]+)+)$')), name='throttle_cost_shape'),
        ),
        migrations.AddConstraint(
            model_name='throttlerule',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('count_on', ''), ('methods', '')), ('events', 'request'), models.Q(('count_on', ''), ('events', 'connection')), _connector='OR'), name='throttle_http_of_requests'),
        ),
        migrations.AddConstraint(
            model_name='throttlerule',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('enforce_at', 1), ('warn_at', '')), models.Q(('algorithm', 'concurrency'), _negated=True), _connector='OR'), name='throttle_quota_of_rate'),
        ),
        migrations.AddConstraint(
            model_name='throttlerule',
            constraint=models.CheckConstraint(condition=models.Q(('enforce_at', 1), models.Q(('enforce_at__range', (1, 100)), models.Q(('action', 'delay'), _negated=True)), _connector='OR'), name='throttle_enforce_at_range'),
        ),
    ]
