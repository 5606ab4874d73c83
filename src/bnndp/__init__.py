"""bnndp certifies the adversarial robustness of Bayesian neural networks."""

from bnndp.attacks import Inside as Inside
from bnndp.attacks import inside_range as inside_range
from bnndp.bounds import AffineBounds as AffineBounds
from bnndp.bounds import Bounds as Bounds
from bnndp.certify import Robustness as Robustness
from bnndp.certify import Verdict as Verdict
from bnndp.certify import adversarial_robustness as adversarial_robustness
from bnndp.certify import certify as certify
from bnndp.errors import CertError as CertError
from bnndp.errors import InputError as InputError
from bnndp.errors import ModelFileError as ModelFileError
from bnndp.files import load as load
from bnndp.files import save as save
from bnndp.network import BayesianNetwork as BayesianNetwork
from bnndp.network import Linear as Linear
from bnndp.network import Relu as Relu
from bnndp.options import Options as Options
from bnndp.regions import Box as Box

__version__ = "0.1.0"
