from rayfed_ssl.api.comparing import Compared as Compared
from rayfed_ssl.api.comparing import compare as compare
from rayfed_ssl.api.encoder import ImageEncoder as ImageEncoder
from rayfed_ssl.api.folder import Run as Run
from rayfed_ssl.api.folder import load as load
from rayfed_ssl.api.running import run as run
from rayfed_ssl.base.schema import UserError as UserError
from rayfed_ssl.federated.messages import ClientError as ClientError
