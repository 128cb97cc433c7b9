from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
        ('django_throttle', '0001_initial'),
    ]

    operations = [
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
            name='ThrottleOverview',
            fields=[
            ],
            options={
                'verbose_name': 'Rules at work',
                'verbose_name_plural': 'Rules at work',
                'proxy': True,
                'default_permissions': (),
                'indexes': [],
                'constraints': [],
            },
            bases=('django_throttle.throttlerule',),
        ),
    ]
