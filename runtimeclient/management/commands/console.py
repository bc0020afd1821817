from runtimeclient.management.django_command import DjangoCommand as Command
