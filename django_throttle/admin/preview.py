"""What a rule would mean while it is being typed: reads the form's fields, changes nothing."""

from __future__ import annotations

from django.http import HttpRequest, JsonResponse

from django_throttle.admin.forms import PreviewForm

UNNAMED = "(no name yet)"


def preview(request: HttpRequest) -> JsonResponse:
    """The words of the rule in the query or the posted form, or what is wrong with it."""
    fields = (request.POST if request.method == "POST" else request.GET).copy()
    if not fields.get("name"):
        fields["name"] = UNNAMED  # the name is asked for when it is saved
    form = PreviewForm(fields)
    if form.is_valid():
        return JsonResponse({"words": form.instance.meaning, "errors": []})
    return JsonResponse({"words": "", "errors": _errors(form)})


def _errors(form: PreviewForm) -> list[str]:
    """Sentences; the field's label goes in front of those that do not name it."""
    found = []
    for name, errors in form.errors.items():
        label = form.fields[name].label if name in form.fields else ""
        found += [text if name in text or not label else f"{label}: {text}" for text in map(str, errors)]
    return found
