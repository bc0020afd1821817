"""The smallest program for a POST on the same stack: Django, one DRF view, gunicorn with gevent. No key, no engine."""

from typing import Any

from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.urls import path

settings.configure(
    ROOT_URLCONF=__name__,
    ALLOWED_HOSTS=["*"],
    SECRET_KEY="nothing is signed",  # noqa: S106 (there is nothing to protect)
    INSTALLED_APPS=["rest_framework"],
    REST_FRAMEWORK={"UNAUTHENTICATED_USER": None},
    LOGGING_CONFIG=None,
)
application = get_wsgi_application()

from django.http import HttpResponse  # noqa: E402 (Django must be configured)
from rest_framework.request import Request  # noqa: E402
from rest_framework.views import APIView  # noqa: E402


class BareView(APIView):
    """Reads the body and answers a constant."""

    authentication_classes: list[Any] = []
    permission_classes: list[Any] = []

    def post(self, request: Request) -> HttpResponse:
        """Answer."""
        request._request.read()  # noqa: SLF001 (DRF has no other way to the unparsed body)
        return HttpResponse(b'[{"1":1}]', content_type="text/plain; charset=utf-8")


urlpatterns = [path("v1/sql", BareView.as_view())]
