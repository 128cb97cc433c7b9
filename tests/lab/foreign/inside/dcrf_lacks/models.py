"""What djangochannelsrestframework's tests import as tests.models, which its source distribution lacks."""

from django.db import models


class TestModel(models.Model):  # noqa: DJ008
    name = models.CharField(max_length=255)


class TestModelWithCustomPK(models.Model):  # noqa: DJ008
    name = models.CharField(max_length=255, primary_key=True)
    description = models.CharField(max_length=255, default="")
