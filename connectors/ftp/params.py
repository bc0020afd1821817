"""The parameters of `ftp:`: files on an FTP server."""

from typing import Annotated

from connectors.file_locations import EXPECTED, locate_file
from runtimeconf.connector import Connector, Param
from runtimeconf.fields import ChoiceField, ParsedField
from runtimeconf.file_formats import EXCEL, DownloadParams
from runtimeconf.network import PORT, RootCertificateFile, parse_password


class FtpParams(DownloadParams):
    """The user, TLS, and the file options."""

    ftp_port: Annotated[int, Param(PORT)] = 21
    ftp_user: Annotated[str, Param(ParsedField("a user name", parse_password))] = ""
    ftp_pass: Annotated[str, Param(ParsedField("a password", parse_password), is_secret=True)] = ""
    ftp_tls: Annotated[str, Param(ChoiceField("required", "disabled"))] = "required"
    ftp_tls_root_certificate_file: RootCertificateFile = None

    def problem(self, location: str) -> str | None:
        """Refuse a password without a user, and root certificates without TLS; see `Params.problem`."""
        if self.ftp_pass and not self.ftp_user:
            return "has ftp_pass, but no ftp_user"
        if self.ftp_tls == "disabled" and self.ftp_tls_root_certificate_file is not None:
            return "has ftp_tls_root_certificate_file, but ftp_tls: disabled turns TLS off"
        return super().problem(location)


FTP = Connector(
    expected=EXPECTED,
    locate=locate_file,
    params=FtpParams,
    source="connectors.ftp.source:FtpSource",
    packages=(EXCEL,),
)
